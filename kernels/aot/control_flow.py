"""Loops of machine code, by the paths through it.

A branch backwards is not yet a loop: the code that waits for a matrix product on Blackwell lies behind the last
instruction and jumps back into the middle of what it was called from. A loop is a branch back to an instruction that
every path to the branch goes through.
"""

from collections.abc import Sequence

from kernels.aot.machine_code import Instruction, matrix_instructions


def main_loop(code: Sequence[Instruction]) -> list[Instruction]:
    """The shortest loop with matrix products: the one over whole tiles, as masks only lengthen the others.

    Empty where there is none.
    """
    bodies = ([code[i] for i in sorted(body)] for body in _loops(code))
    return min((body for body in bodies if matrix_instructions(body)), key=len, default=[])


def _loops(code: Sequence[Instruction]) -> list[set[int]]:
    """Indices of the instructions of each loop: those that lead to its last branch without leaving by its head."""
    after = [_followers(code, i) for i in range(len(code))]
    before: list[list[int]] = [[] for _ in code]
    for i, followers in enumerate(after):
        for follower in followers:
            before[follower].append(i)
    reached = _reach(after, 0, None)
    found = []
    for i, instruction in enumerate(code):
        head = instruction.jumps_to
        if head is not None and head <= i and i in reached and i not in _reach(after, 0, head):
            found.append(_reach(before, i, head) & reached | {head})
    return found


def _followers(code: Sequence[Instruction], i: int) -> list[int]:
    followers = [] if code[i].ends else [i + 1]
    target = code[i].jumps_to
    return [index for index in (*followers, target) if index is not None and index < len(code)]


def _reach(edges: Sequence[Sequence[int]], start: int, barred: int | None) -> set[int]:
    """What can be reached from `start` without entering `barred`; nothing from `barred` itself."""
    found: set[int] = set()
    waiting = [start]
    while waiting:
        i = waiting.pop()
        if i not in found and i != barred:
            found.add(i)
            waiting.extend(edges[i])
    return found
