"""What a layout costs: pure functions from a model, a cluster and a table of layouts to memory and time."""
