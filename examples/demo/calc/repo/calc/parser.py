"""Tokens to a tree, by precedence climbing."""

from calc.tree import Tree

PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "**": 3}


def parse(tokens: list[str]) -> Tree:
    """The tree of a whole expression. Raises SyntaxError where it is none."""
    parser = _Parser(tokens)
    tree = parser.expression(1)
    if parser.peek() is not None:
        raise SyntaxError(f"not expected: {parser.peek()!r}")
    return tree


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._next = 0

    def peek(self) -> str | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def take(self) -> str:
        token = self.peek()
        if token is None:
            raise SyntaxError("the expression ends too early")
        self._next += 1
        return token

    def expression(self, lowest: int) -> Tree:
        """Operands joined by operators of at least the precedence `lowest`."""
        left = self.operand()
        while PRECEDENCE.get(self.peek(), 0) >= lowest:
            name = self.take()
            right = self.expression(PRECEDENCE[name] + 1)
            left = (name, left, right)
        return left

    def operand(self) -> Tree:
        """A number, a signed operand, or an expression in parentheses."""
        symbol = self.take()
        if symbol == "-":
            return ("-", 0.0, self.operand())
        if symbol == "(":
            inner = self.expression(1)
            if self.take() != ")":
                raise SyntaxError("a parenthesis isn't closed")
            return inner
        if symbol in PRECEDENCE or symbol == ")":
            raise SyntaxError(f"not expected: {symbol!r}")
        return float(symbol)
