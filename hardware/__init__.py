"""What the machine is: GPUs and clusters, read from TOML files in which every number has its source.

Standard library only. `units` names the units, `reader` turns a TOML file into a checked table, `gpu`
and `cluster` are the data, `catalog` loads them by name or path.
"""
