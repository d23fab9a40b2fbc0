"""A frontier or a sweep as one self-contained page."""
