"""Measured runs against predictions: reading them, scoring predictions, fitting a profile's rates to them."""
