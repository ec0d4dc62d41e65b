"""Parts that are easy to add up."""

from agents.plan.parts import Parts

# An action takes 1 ms, a learner step of 100 transitions 2 ms; everything else takes no time.
PARTS = Parts(
    what="tests",
    settings={},
    machine="tests",
    environment=0.4e-3,
    policy_call=0.3e-3,
    policy_row=0.1e-3,
    insert_thread=0.2e-3,
    insert_actor=0.2e-3,
    insert_server=0.0,
    insert_bytes=1000.0,
    sample_learner=0.0,
    sample_thread=0.0,
    sample_server=0.0,
    sample_bytes=500.0,
    step_call=1e-3,
    step_row=10e-6,
    step_threads=1.0,
    weight_bytes=1e6,
    fetch_actor=0.0,
    fetch_learner=0.0,
    gradient_bytes=1e6,
    call=0.0,
    episode_actions=100.0,
)
