"""The parts put together and run."""
