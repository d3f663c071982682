from dask.distributed import Client


def square(x):
    return x * x


if __name__ == "__main__":
    with Client(n_workers=2, threads_per_worker=1) as client:
        print("first", client.submit(square, 7).result(), flush=True)
        print("sum", sum(client.gather(client.map(square, range(1000)))))
