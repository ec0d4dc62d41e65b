"""Example programs: `python -m launchpad.examples.consumer_producers.launch`, for example."""
