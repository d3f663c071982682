import ray


@ray.remote
def square(x):
    return x * x


ray.init(num_cpus=2, _node_ip_address="127.0.0.1")
print("first", ray.get(square.remote(7)), flush=True)
print("sum", sum(ray.get([square.remote(x) for x in range(1000)])))
