"""Codecs of columns: forms that save bytes, and the choice among them.

`kernels` are the loops (`stand_ins` the same with NumPy), `nodes` the forms of numbers and bytes,
`columns` those of Arrow's types, `choosing` decides, `disk` says how fast bytes get to it.
"""
