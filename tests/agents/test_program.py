"""The wiring of agents."""

from agents import program
from launchpad.rpc import answers


def test_servers_remember_calls_for_longer_than_they_are_sent_again():
    assert program._PATIENT["courier_client_kwargs"]["retry_secs"] < answers.FORGET_SECS
