"""One node of an expression, as the builder for its class sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.catalyst.jvm import JvmNode, scala_option
from penstock.catalyst.literals import constant_value
from penstock.errors import ExpressionError
from penstock.expressions.tree import Expression

_NOT_ANSI = "it was written without ANSI mode; set spark.sql.ansi.enabled to true"


INPUT_FILE = -1  # no exprId: what stands for the name of the file that a row is from


class AggregateCalls(Protocol):
    """Where an expression over groups finds the columns of its aggregates."""

    def column(self, node: JvmNode, of: str | None = None) -> Expression:
        """The column that holds an aggregate; `of` names the output column in errors."""
        ...


class Reader(Protocol):
    """Who reads the expressions of a plan node, and what is in reach there."""

    @property
    def columns(self) -> Mapping[int, Expression]: ...

    @property
    def hidden(self) -> Mapping[int, str]: ...

    @property
    def session_zone(self) -> str: ...

    @property
    def aggregates(self) -> AggregateCalls | None: ...

    def built(self, node: JvmNode, column: str | None = None, depth: int = 0) -> Expression: ...


@dataclass(frozen=True)
class Place:
    """One node, the column that it is for, and how deep it stands."""

    reader: Reader
    node: JvmNode
    column: str | None
    depth: int

    def arg(self, index: int) -> Expression:
        return self.read_node(self.node.children[index])

    def args(self) -> list[Expression]:
        return [self.arg(index) for index in range(len(self.node.children))]

    def read_node(self, node: JvmNode) -> Expression:
        """The expression of a node below this one."""
        return self.reader.built(node, self.column, self.depth + 1)

    def constant(self, index: int, what: str) -> Any:
        return constant_value(self.arg(index), what)

    def read(self, field: str) -> Any:
        return self.node.read(field)

    def zone(self) -> str:
        return str(scala_option(self.read("timeZoneId")) or self.reader.session_zone)

    def zone_for(self, *args: Expression) -> dict[str, str]:
        """The option of the zone, where one of the arguments asks for it."""
        needed = any(arg.type.kind == "timestamp" for arg in args)
        return {"time_zone": self.zone()} if needed else {}

    def eval_mode(self) -> str:
        """ANSI, TRY or LEGACY: what becomes of an overflow."""
        return str(self.read("evalMode").toString())

    def require_ansi(self, field: str) -> None:
        """Refuse what was written in another mode than ANSI."""
        if field != "evalMode":
            if not self.read(field):
                raise ExpressionError(_NOT_ANSI)
            return
        mode = self.eval_mode()
        if mode != "ANSI":
            raise ExpressionError(
                f"it was written in {mode} mode; set spark.sql.ansi.enabled to true and write it "
                "again"
            )


Builder = Callable[[Place], Expression]
