"""Pickles of classes that cannot be imported elsewhere."""

import gc
import pickle

from launchpad.pickles import by_value


def test_a_class_that_nothing_else_refers_to_keeps_its_attributes():
    def sent():
        kind = type("Sent", (), {"__module__": "__main__", "total": 0})
        return by_value.dumps(kind())

    payload = sent()
    gc.collect()  # This process drops the class, as if another process had sent it.
    for total in (0, 1):
        kind = type(pickle.loads(payload))
        assert kind.total == total
        kind.total += 1
        del kind
        gc.collect()
