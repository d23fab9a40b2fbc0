"""Which layouts exist, fit, and are best."""
