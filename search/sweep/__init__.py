"""Many searches: models x clusters x what-ifs x sizes x batches, and what a training run takes on each."""
