"""Python functions in Spark's plan: reads the nodes of their own that Spark has put them into.

The code of a function goes with the tasks of slots and nowhere else; the plan has its digest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from penstock.catalyst.by_spark import SparkColumns, SparkExpressions
from penstock.catalyst.function_digest import digest_of, unpickled
from penstock.catalyst.jvm import JvmNode, java_classes, scala_map, scala_object, scala_option
from penstock.catalyst.refusals import unsupported
from penstock.catalyst.rows import Names, SparkRows, made
from penstock.catalyst.session import SessionFacts
from penstock.catalyst.spark_types import spark_type
from penstock.catalyst.state_variables import Variable
from penstock.expressions.tree import Column, Expression
from penstock.expressions.types import DataType, Field
from penstock.json_codec import canonical_json
from penstock.operators.python_functions import (
    ARROW_ROWS,
    BYTES_PER_BATCH,
    ROWS_PER_BATCH,
    PythonCode,
)
from penstock.operators.specs import (
    NamedExpression,
    ProjectSpec,
    PythonCall,
    PythonColumn,
    PythonGroupsSpec,
    PythonRowsSpec,
    PythonSpec,
)
from penstock.plan.keys import as_key
from penstock.plan.nodes import Relation, column_refs, step

_SCALAR = frozenset({100, 101, 200, 204, 250, 251})  # Spark's numbers for functions of rows
_CHAINED = "PythonUDF"
_BY_NAME = "NamedArgumentExpression"


@dataclass
class PythonBundle:
    """The functions of a query, by digest, and the broadcast variables that they refer to."""

    codes: dict[str, PythonCode] = field(default_factory=dict)
    variables: dict[int, Any] = field(default_factory=dict)  # the JVM's, by their numbers

    def update(self, other: PythonBundle) -> None:
        self.codes |= other.codes
        self.variables |= other.variables

    def add(self, code: PythonCode, functions: Sequence[Any]) -> str:
        """Take a function that consists of these in the JVM; its digest."""
        for function in functions:
            variables = function.broadcastVars()
            for index in range(variables.size()):
                self.variables[int(variables.get(index).id())] = variables.get(index)
        digest = digest_of(code, self.pickled)
        self.codes[digest] = code
        return digest

    def pickled(self, variable: int) -> bytes:
        """What a broadcast variable holds: Spark sends large functions as one."""
        with open(str(self.variables[variable].value().path()), "rb") as file:
            return file.read()


class PythonReader:
    """Reads the nodes of one query that call functions."""

    def __init__(self, session: SessionFacts, spark: SparkExpressions, into: PythonBundle) -> None:
        self._session = session
        self._spark = spark
        self._bundle = into
        self._settings: tuple[tuple[str, str], ...] | None = None

    def columns(self, node: JvmNode, rows: SparkRows) -> SparkRows:
        """BatchEvalPython and ArrowEvalPython: a column for each function."""
        calls = [_Call.read(node, udf) for udf in node.nodes("udfs")]
        relation, inputs = self._with_inputs(node, rows, calls)
        names = Names({column.name for column in relation.schema})
        added: list[PythonColumn] = []
        columns = dict(rows.columns)
        for call, given, attribute in zip(calls, inputs, node.nodes("resultAttrs"), strict=True):
            if call.eval_type not in _SCALAR:
                raise unsupported(
                    node.kind,
                    f"Python functions of Spark's kind {call.eval_type} are not run here",
                    expression=call.node,
                )
            result = Field(
                names.give(str(attribute.read("name"))), self._type(node, attribute), nullable=True
            )
            added.append(PythonColumn(result, self._call(call, given)))
            columns[attribute.expr_id] = Column(result.name, result.type, result.nullable)
        spec = PythonSpec(tuple(added))
        return replace(rows, relation=made(node, lambda: step(spec, relation)), columns=columns)

    def table(self, node: JvmNode, rows: SparkRows) -> SparkRows:
        """BatchEvalPythonUDTF and ArrowEvalPythonUDTF: rows for each row, beside its columns."""
        udtf = node.node("udtf")
        call = _Call.read(node, udtf)
        partitions = scala_option(udtf.read("pythonUDTFPartitionColumnIndexes"))
        if partitions is not None and partitions.partitionChildIndexes().size():
            raise unsupported(
                node.kind,
                "a table function whose rows are partitioned needs to know where a partition ends, "
                "and a stream has no end",
                expression=udtf,
            )
        return self._rows(node, rows, call, call.eval_type != ARROW_ROWS, "resultAttrs")

    def batches(self, node: JvmNode, rows: SparkRows) -> SparkRows:
        """MapInPandas and MapInArrow: other rows for a batch."""
        function = node.node("functionExpr" if hasattr(node.handle, "functionExpr") else "func")
        if node.read("isBarrier"):
            raise unsupported(
                node.kind, "tasks that wait for each other are not run here", expression=function
            )
        call = _Call.read(node, function)
        names = tuple(str(each.read("name")) for each in node.children[0].output)
        given = replace(call, arguments=node.children[0].output, names=(None,) * len(names))
        return self._rows(node, rows, given, False, "output", names)

    def groups(
        self,
        node: JvmNode,
        rows: SparkRows,
        keys: Sequence[JvmNode],
        variables: Mapping[str, Variable],
        spec: Callable[[tuple[Expression, ...], PythonCall, tuple[Field, ...]], PythonGroupsSpec],
        results: str = "outputAttrs",
    ) -> SparkRows:
        """The rows of each key to a function, which keeps something for it; `spec` puts together
        the keys, the call and its columns."""
        call = _Call.read(node, node.node("functionExpr"))
        given = replace(
            call,
            arguments=(*keys, *call.arguments),
            names=(None,) * (len(keys) + len(call.arguments)),
        )
        relation, (inputs,) = self._with_inputs(node, rows, [given])
        names = Names({column.name for column in relation.schema})
        computed: list[NamedExpression] = []
        by = tuple(
            _column(made(node, partial(as_key, column)), computed, names)
            for column in inputs[: len(keys)]
        )
        if computed:
            columns = (*column_refs(relation.schema), *computed)
            relation = made(node, partial(step, ProjectSpec(columns), relation))
        outputs, found = self._outputs(node, results, Names())
        shown = [str(each.read("name")) for each in given.arguments]
        facts = canonical_json({name: each.to_json() for name, each in variables.items()})
        initial = _initial_json(node)
        made_spec = spec(by, self._call(given, inputs, shown, facts, initial), outputs)
        return SparkRows(made(node, partial(step, made_spec, relation)), found)

    def processor(self, node: JvmNode) -> Any:
        """The object of a query whose methods are the function, as the driver has it."""
        (function,) = _Call.read(node, node.node("functionExpr")).functions
        command = bytes(function.command().unsafeArray())
        variables = function.broadcastVars()
        known = {int(variables.get(at).id()): variables.get(at) for at in range(variables.size())}
        bundle = PythonBundle(variables=known)
        method, _ = unpickled(command, bundle.pickled)
        return method.__self__._stateful_processor

    def _outputs(
        self, node: JvmNode, attributes: str, names: Names
    ) -> tuple[tuple[Field, ...], dict[int, Expression]]:
        """The columns that a function makes, and which attribute each is."""
        found = node.nodes(attributes)
        outputs = tuple(
            Field(
                names.give(str(attribute.read("name"))),
                self._type(node, attribute),
                bool(attribute.read("nullable")),
            )
            for attribute in found
        )
        return outputs, {
            attribute.expr_id: Column(output.name, output.type, output.nullable)
            for attribute, output in zip(found, outputs, strict=True)
        }

    def _rows(
        self,
        node: JvmNode,
        rows: SparkRows,
        call: _Call,
        repeats: bool,
        results: str,
        shown: Sequence[str] | None = None,
    ) -> SparkRows:
        relation, (given,) = self._with_inputs(node, rows, [call])
        names = Names({column.name for column in relation.schema} if repeats else None)
        outputs, found = self._outputs(node, results, names)
        spec = PythonRowsSpec(self._call(call, given, shown), outputs, repeats)
        relation = made(node, lambda: step(spec, relation))
        if not repeats:
            return SparkRows(relation, found)
        return replace(rows, relation=relation, columns={**rows.columns, **found})

    def _with_inputs(
        self, node: JvmNode, rows: SparkRows, calls: Sequence[_Call]
    ) -> tuple[Relation, list[list[Column]]]:
        """The rows with every argument of the calls as a column, and which these are."""
        by_spark = SparkColumns(self._spark)
        expressions = rows.expressions(node.kind, self._session.time_zone, by_spark)
        read = [[expressions.read(part) for part in call.arguments] for call in calls]
        for call, values in zip(calls, read, strict=True):
            for part, value in zip(call.arguments, values, strict=True):
                _check_known(node, part, value.type)
        relation = by_spark.added_to(rows.relation)
        names = Names({column.name for column in relation.schema})
        there = column_refs(relation.schema)
        computed: list[NamedExpression] = []
        inputs = [[_column(value, computed, names) for value in given] for given in read]
        if computed:
            relation = made(node, lambda: step(ProjectSpec((*there, *computed)), relation))
        return relation, inputs

    def _call(
        self,
        call: _Call,
        inputs: Sequence[Column],
        shown: Sequence[str] | None = None,
        variables: str = "{}",
        initial: str | None = None,
    ) -> PythonCall:
        """The call over columns; `shown` are the names under which the function sees them."""
        if self._settings is None:
            self._settings = _settings(self._session.handle)
        names = shown or [f"_{at}" for at in range(len(call.arguments))]
        code = PythonCode(
            name=str(call.node.read("name")),
            eval_type=call.eval_type,
            commands=tuple(bytes(each.command().unsafeArray()) for each in call.functions),
            arguments=call.names,
            input_type=_struct_json(names, call.arguments),
            result_type=call.result_type,
            settings=self._settings,
            analysed=call.analysed,
            variables=variables,
            initial_type=initial,
        )
        digest = self._bundle.add(code, call.functions)
        return PythonCall(tuple(inputs), call.text, digest, call.deterministic)

    def _type(self, node: JvmNode, attribute: JvmNode) -> Any:
        found = made(node, lambda: spark_type(attribute.read("dataType")), attribute)
        _check_known(node, attribute, found)
        return found


@dataclass(frozen=True)
class _Call:
    """A call as it stands in Spark's plan."""

    node: JvmNode
    arguments: tuple[JvmNode, ...]
    names: tuple[str | None, ...]  # of arguments that are passed by name
    functions: tuple[Any, ...]  # the JVM's: of a chain f(g(x)) first g, then f
    deterministic: bool

    @classmethod
    def read(cls, plan: JvmNode, node: JvmNode) -> _Call:
        """A function with its arguments; one that has another's result for its only one takes it
        over in Python."""
        chain = [node]
        while len(chain[0].children) == 1 and chain[0].children[0].kind == _CHAINED:
            chain.insert(0, chain[0].children[0])
        given = [
            (str(part.read("key")), part.children[0]) if part.kind == _BY_NAME else (None, part)
            for part in chain[0].children
        ]
        return cls(
            node,
            tuple(part for _, part in given),
            tuple(name for name, _ in given),
            tuple(part.read("func") for part in chain),
            all(bool(part.read("udfDeterministic")) for part in chain),
        )

    @property
    def eval_type(self) -> int:
        return int(self.node.read("evalType"))

    @property
    def text(self) -> str:
        return self.node.text

    @property
    def result_type(self) -> str:
        is_table = "PythonUDTF" in self.node.ancestors
        return str(self.node.read("elementSchema" if is_table else "dataType").json())

    @property
    def analysed(self) -> bytes | None:
        if "PythonUDTF" not in self.node.ancestors:
            return None
        found = scala_option(self.node.read("pickledAnalyzeResult"))
        return None if found is None else bytes(found)


def _check_known(node: JvmNode, value: JvmNode, data_type: DataType) -> None:
    """Refuse what PySpark has no values of."""
    if any(each.is_months for each in data_type.walk()):
        raise unsupported(
            node.kind,
            "Spark hands no intervals of years and months to Python: give extract(YEAR FROM x) and "
            "extract(MONTH FROM x)",
            expression=value,
            column=str(value.read("name")) if value.kind == "AttributeReference" else None,
            way_out="Structured Streaming does not do that either",
        )


def _column(value: Expression, computed: list[NamedExpression], names: Names) -> Column:
    if isinstance(value, Column):
        return value
    for name, known in computed:
        if known == value:
            return Column(name, value.type, value.nullable)
    computed.append((names.give("argument"), value))
    return Column(computed[-1][0], value.type, value.nullable)


def _struct_json(names: Sequence[str], parts: Sequence[JvmNode]) -> str:
    """Spark's JSON of a struct of these."""
    fields = [
        {
            "name": name,
            "type": json.loads(str(part.read("dataType").json())),
            "nullable": bool(part.read("nullable")),
            "metadata": {},
        }
        for name, part in zip(names, parts, strict=True)
    ]
    return json.dumps({"type": "struct", "fields": fields})


def _initial_json(node: JvmNode) -> str | None:
    """Spark's JSON of the rows that a processor begins with."""
    if node.kind != "TransformWithStateInPySpark" or not node.read("hasInitialState"):
        return None
    output, count = node.children[1].output, int(node.read("initGroupingAttrsLen"))
    rows = {item.expr_id for item in output[count:]}
    shown = [*(key for key in output[:count] if key.expr_id not in rows), *output[count:]]
    return _struct_json([str(each.read("name")) for each in shown], shown)


def _settings(session: Any) -> tuple[tuple[str, str], ...]:
    """What Spark tells its Python processes of the session."""
    python = java_classes().org.apache.spark.sql.execution.python
    settings = session._jsparkSession.sessionState().conf()
    found: Mapping[str, str] = scala_map(
        scala_object(python, "ArrowPythonRunner").getPythonRunnerConfMap(settings)
    )
    told = {ROWS_PER_BATCH: str(session.conf.get(ROWS_PER_BATCH))}
    if settings.contains(BYTES_PER_BATCH):  # only if somebody has set it
        sizes = java_classes().org.apache.spark.network.util.JavaUtils
        bytes_max = sizes.byteStringAsBytes(settings.getConfString(BYTES_PER_BATCH))
        told[BYTES_PER_BATCH] = str(bytes_max)
    return tuple(sorted({**found, **told}.items()))
