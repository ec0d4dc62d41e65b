"""Launches a program in a test (upstream's module of the same name)."""

from launchpad.launch import in_tests
from launchpad.launch_type import LaunchType

launch = in_tests.launcher(LaunchType.TEST_MULTI_THREADING)
