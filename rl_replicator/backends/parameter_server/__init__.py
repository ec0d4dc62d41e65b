"""Asynchronous workers: a coordinator, parameter servers, and workers at their own pace."""
