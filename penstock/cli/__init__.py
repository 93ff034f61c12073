"""The `penstock` command: everything an operator needs, one module per subcommand.

A subcommand is a module with `add_parser(subparsers) -> None`, which adds its parser and sets
`func`, a callable that takes the parsed arguments and returns the exit code. To add one, write the
module and put its line into `COMMANDS` in `main.py`.
"""
