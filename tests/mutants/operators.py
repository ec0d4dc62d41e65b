"""Generates mutants: copies of a module with one small fault each, which good tests must catch."""

import ast
import copy
import dataclasses
from collections import Counter
from collections.abc import Iterator

_COMPARISONS = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_PAIRS = (
    ("maximum", "minimum"),
    ("max", "min"),
    ("any", "all"),
    ("reduce_max", "reduce_min"),
    ("reduce_sum", "reduce_mean"),
    ("reduce_any", "reduce_all"),
    ("all_max", "all_min"),
    ("all_sum", "all_mean"),
    ("floor", "ceil"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
    ("assign_add", "assign_sub"),
    ("popleft", "pop"),
    ("append", "appendleft"),
)
_SWAPPED = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}
# Calls that change a value but not its type: a mutant replaces the call by its first argument.
_LEFT_OUT = {
    *("stop_gradient", "maximum", "minimum", "max", "min", "abs", "sqrt", "clip_by_value"),
    *("clip_by_norm", "clip", "floor", "softmax", "tanh", "relu", "all_reduce", "all_max"),
    *("all_min", "all_sum", "all_mean", "reversed", "sorted", "square", "exp", "log"),
}
# Calls whose last two arguments are not swapped: either their order does not matter, or the swap
# could only raise a TypeError, which would inflate the share of killed mutants.
_NOT_EXCHANGED = {
    *("maximum", "minimum", "max", "min", "equal", "logical_and", "logical_or", "range"),
    *("isinstance", "getattr", "setattr", "hasattr", "partial", "map_structure", "cast"),
    *("reshape", "concat", "constant", "gradient", "build_optimizer", "apply", "gather"),
    *("transpose", "stack", "Variable", "tile", "ensure_shape", "slice", "TensorSpec"),
}
# Comparisons whose only mutant is their negation: a condition of this kind is not negated again.
_TWO_SIDED = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A module with one fault.

    Attributes:
      name: "function: before -> after"; it does not change if the function moves.
      line: number of the line with the fault.
      source: the module's whole source, with the fault.
    """

    name: str
    line: int
    source: str


def mutants(source: str) -> list[Mutant]:
    """Returns all mutants of a module's source, in source order."""
    found, seen = [], Counter[str]()
    for function, node, after in _faults("module", ast.parse(source)):
        name = f"{function}: {_short(ast.unparse(node))} -> {_short(after)}"
        seen[name] += 1
        if seen[name] > 1:
            name += f" (#{seen[name]})"
        found.append(Mutant(name, node.lineno, _replaced(source, node, after)))
    return found


def _faults(function: str, node: ast.AST) -> Iterator[tuple[str, ast.AST, str]]:
    """Yields (enclosing function, node, its replacement) for a node and all its descendants."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        function = node.name if function == "module" else f"{function}.{node.name}"
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return  # It only matters if the code has another fault.
    if isinstance(node, ast.keyword) and node.arg == "axis":
        # Another mutant of the number may denote the same axis: 1 and -1 are equal for a matrix.
        other = "1" if ast.unparse(node.value) == "0" else "0"
        yield function, node.value, other
        return
    if isinstance(node, ast.expr):
        yield from ((function, node, after) for after in _expressions(node))
    elif isinstance(node, ast.stmt):
        yield from ((function, part, after) for part, after in _statements(node))
    for child in _children(node):
        yield from _faults(function, child)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the children to mutate, without annotations, decorators and error messages."""
    if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert)) or _is_number(node):
        return
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list", "bases", "type"):
            values = value if isinstance(value, list) else [value]
            yield from (child for child in values if isinstance(child, ast.AST))


def _is_number(node: ast.AST) -> bool:
    """Whether a node is a signed number such as -1, which counts as a single constant."""
    return isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)


def _negates(test: ast.expr) -> bool:
    """Whether to negate a condition: not if its own mutants include the negation."""
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], _TWO_SIDED):
        return False
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return False
    return ast.unparse(test) not in ("TYPE_CHECKING", "True")


def _changed(node: ast.AST, **fields) -> str:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return ast.unparse(ast.fix_missing_locations(new))


def _expressions(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Compare(ops=[op]):
            yield from (_changed(node, ops=[new()]) for new in _COMPARISONS[type(op)])
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
            yield _changed(node, op=_ARITHMETIC[type(op)]())
        case ast.BoolOp(op=op):
            yield _changed(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            yield ast.unparse(operand)
        case ast.IfExp(test=test) if _negates(test):
            yield _changed(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value)):
            yield str(value + 1)
        case ast.Constant(value=float(value)):
            yield str(2 * value if value else 1.0)
        case ast.Call():
            yield from _calls(node)


def _calls(node: ast.Call) -> Iterator[str]:
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in _SWAPPED:
        field = "attr" if isinstance(function, ast.Attribute) else "id"
        new = copy.copy(function)
        setattr(new, field, _SWAPPED[name])
        yield _changed(node, func=new)
    if name in _LEFT_OUT and node.args:
        yield ast.unparse(node.args[0])
    if len(node.args) >= 2 and name not in _NOT_EXCHANGED:
        *before, a, b = node.args
        if ast.dump(a) != ast.dump(b) and not isinstance(b, ast.Starred):
            yield _changed(node, args=[*before, b, a])


def _statements(node: ast.stmt) -> Iterator[tuple[ast.AST, str]]:
    match node:
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
            yield node, "pass"
        case ast.Continue() | ast.Break():
            yield node, "pass"
        case ast.Assign(targets=[target], value=value):
            if ast.unparse(target) in {ast.unparse(part) for part in ast.walk(value)}:
                yield node, "pass"
        case ast.If(test=test) | ast.While(test=test) if _negates(test):
            yield test, f"not ({ast.unparse(test)})"


def _replaced(source: str, node: ast.AST, after: str) -> str:
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    begin = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset
    text, new = source.encode(), f"({after})" if isinstance(node, ast.expr) else after
    return (text[:begin] + new.encode() + text[end:]).decode()


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 70 else f"{text[:67]}..."
