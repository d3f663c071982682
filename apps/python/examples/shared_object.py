"""A shared object: each link between clusters carries it once, however many tasks read it."""

from springtide import Grid, progress


def closest(points, first, last):
    """The smallest squared distance from points of a part to later ones, and both points."""
    best = None
    for a in range(first, last):
        for b in range(a + 1, len(points.value)):
            (x, y), (u, v) = points.value[a], points.value[b]
            found = ((x - u) ** 2 + (y - v) ** 2, a, b)
            best = found if best is None else min(best, found)
    progress(last, len(points.value), "points")
    return best


def spread(count):
    """Points that are spread without an order."""
    return [(index * 7919 % 10_007, index * 104_729 % 10_009) for index in range(1, count + 1)]


if __name__ == "__main__":
    with Grid.start("2x2", output=None) as grid:
        points = grid.put(spread(1200))
        starts = range(0, 1200, 100)
        parts = grid.map(closest, [points] * 12, starts, (start + 100 for start in starts))
        distance, a, b = min(part for part in parts if part is not None)
    print(f"points {a} and {b} are the closest, with the squared distance {distance}")
