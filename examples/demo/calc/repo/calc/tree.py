"""Expression trees: a number, or an operator with its operands."""

import operator

Tree = float | tuple[str, "Tree", "Tree"]

OPERATIONS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": operator.pow,
}


def value_of(tree: Tree) -> float:
    """What the tree comes to."""
    if isinstance(tree, tuple):
        name, left, right = tree
        return OPERATIONS[name](value_of(left), value_of(right))
    return tree
