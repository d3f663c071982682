"""Divide and conquer: which number below a limit has the longest Collatz sequence?"""

from springtide import Grid, join, task


@task
def longest(start, end):
    """The length of the longest sequence of a range, and the smallest number that has it."""
    if end - start <= 10_000:
        return longer([(length(number), number) for number in range(start, end)])
    middle = (start + end) // 2
    return longer(join(longest.call(start, middle), longest.call(middle, end)))


def longer(sequences):
    return max(sequences, key=lambda sequence: (sequence[0], -sequence[1]))


def length(number):
    steps = 1
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        steps += 1
    return steps


if __name__ == "__main__":
    with Grid.start("2x2") as grid:
        steps, number = grid.run(longest.call(1, 300_000))
    print(f"{number} has the longest sequence, of {steps} numbers")
