"""Heat in a rod, by rounds of tasks: each advances a block of cells by several steps.

Tasks do not exchange messages. So a block comes with as many cells of its neighbours as there are
steps in a round, and the edges that this makes wrong are cut off.
"""

from springtide import Grid

CELLS, STEPS, ROUND, BLOCKS = 3000, 500, 25, 8


def advance(cells, cut):
    """The cells after a round, without `cut` of them at the left and right."""
    for _ in range(ROUND):
        # Nothing flows through the ends of the rod.
        left, right = [cells[0], *cells[:-1]], [*cells[1:], cells[-1]]
        cells = [c + 0.25 * (a - c + b - c) for a, c, b in zip(left, cells, right)]
    return cells[cut[0] : len(cells) - cut[1]]


def heat(grid):
    """The temperatures of the cells, whose left half was hot."""
    rod = [1.0] * (CELLS // 2) + [0.0] * (CELLS // 2)
    edges = [CELLS * block // BLOCKS for block in range(BLOCKS + 1)]
    blocks = list(zip(edges, edges[1:]))
    cuts = [(min(ROUND, start), min(ROUND, CELLS - end)) for start, end in blocks]
    for _ in range(STEPS // ROUND):
        parts = [rod[b[0] - cut[0] : b[1] + cut[1]] for b, cut in zip(blocks, cuts)]
        rod = [cell for part in grid.map(advance, parts, cuts) for cell in part]
    return rod


if __name__ == "__main__":
    with Grid.start("1x3") as grid:
        rod = heat(grid)
    print(f"the middle of the rod has {rod[CELLS // 2]:.6f}, all cells {sum(rod):.6f}")
