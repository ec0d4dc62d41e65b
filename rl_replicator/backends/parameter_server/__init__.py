"""A coordinator, workers that take steps at their own pace, and parameter servers."""
