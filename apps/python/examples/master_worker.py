"""Master and workers: independent calls, whose values arrive in order."""

from springtide import Grid


def count_primes(start, end):
    """How many primes are in a range?"""
    return sum(is_prime(number) for number in range(start, end))


def is_prime(number):
    return number > 1 and all(number % d for d in range(2, int(number**0.5) + 1))


if __name__ == "__main__":
    starts = range(0, 200_000, 2000)
    with Grid.start("2x2") as grid:
        counts = list(grid.map(count_primes, starts, (start + 2000 for start in starts)))
    print(f"{sum(counts)} primes in {len(counts)} ranges")
