"""Settings of searches, for hypothesis to choose from."""

from hypothesis import strategies as st

SEARCHES = st.one_of(
    st.just({"strategy": "greedy"}),
    st.builds(
        lambda name, n, own: {"strategy": name, "n": n, **own},
        st.sampled_from(["self_consistency", "best_of_n"]),
        st.integers(1, 8),
        st.one_of(
            st.just({}),
            st.fixed_dictionaries(
                {"risk": st.sampled_from([0.0, 0.1, 0.5])},
                optional={"rounds": st.lists(st.integers(1, 4), min_size=1, max_size=3)},
            ),
        ),
    ),
    st.builds(
        lambda kept, m, depth, own: {
            "strategy": "beam_search",
            "n": kept * m,
            "m": m,
            "max_depth": depth,
            **own,
        },
        st.integers(1, 4),
        st.integers(1, 3),
        st.integers(1, 8),
        st.fixed_dictionaries({}, optional={"patience": st.sampled_from([1.0, 1.5])}),
    ),
    st.builds(
        lambda name, kept, m, depth, lookahead: {
            "strategy": name,
            "n": kept * m,
            "m": m,
            "max_depth": depth,
            "lookahead": lookahead,
        },
        st.sampled_from(["beam_search", "dvts"]),
        st.integers(1, 3),
        st.integers(1, 3),
        st.integers(1, 6),
        st.integers(0, 3),
    ),
    st.builds(
        lambda name, n, depth: {"strategy": name, "n": n, "max_depth": depth},
        st.sampled_from(["rebase", "ets", "particle_filter"]),
        st.integers(1, 9),
        st.integers(1, 8),
    ),
    st.builds(
        lambda own, iterations, width, paths, depth: (
            own | {"strategy": "mcts", "iterations": iterations, "width": width, "paths": paths, "max_depth": depth}
        ),
        st.fixed_dictionaries(
            {
                "value": st.sampled_from(["reward", "rollout", "both"]),
                "prior": st.sampled_from(["none", "reward", "logprob"]),
                "decision": st.sampled_from(["value", "visits", "terminal", "vote"]),
            },
            optional={"accept": st.floats(0, 1), "accept_margin": st.floats(0, 1), "reject": st.floats(0, 1)},
        ),
        st.integers(1, 12),
        st.integers(1, 4),
        st.integers(1, 4),
        st.integers(1, 6),
    ),
    st.builds(
        lambda iterations, paths, posterior, generation: {
            "strategy": "ab_mcts",
            "iterations": iterations,
            "paths": paths,
            "posterior": posterior,
            "generation": generation,
        },
        st.integers(1, 20),
        st.integers(1, 5),
        st.sampled_from(["gaussian", "beta"]),
        st.sampled_from(["step", "solution", "refine"]),
    ),
    st.builds(
        lambda n, window, readers, contested: {
            "strategy": "select",
            "n": n,
            "window": window,
            "readers": readers,
            "contested": contested,
        },
        st.integers(1, 9),
        st.integers(2, 5),
        st.integers(1, 3),
        st.sampled_from([0.3, 1.0]),
    ),
    st.builds(
        lambda size, weights, k: {"strategy": "fuse", "weights": weights, **size, **k},
        st.sampled_from([{"n": 1}, {"n": 5, "rounds": 3}, {"n": 8}, {"schedule": [7, 3, 1]}]),
        st.sampled_from(["uniform", "votes", "rewards"]),
        st.fixed_dictionaries({}, optional={"k": st.integers(1, 5)}),
    ),
    st.builds(
        lambda n, depth, feedback: {"strategy": "refine", "n": n, "depth": depth, "feedback": feedback},
        st.integers(1, 4),
        st.integers(0, 3),
        st.sampled_from(["rewards", "critique", "none"]),
    ),
    st.builds(
        lambda iterations, width, entropy: {
            "strategy": "frontier",
            "iterations": iterations,
            "width": width,
            "entropy_weight": entropy,
        },
        st.integers(1, 10),
        st.integers(1, 8),
        st.sampled_from([0.0, 0.4]),
    ),
)
"""Every strategy."""
LIMITS = st.fixed_dictionaries(
    {"max_step_tokens": st.integers(3, 10), "max_path_tokens": st.integers(5, 60), "seed": st.integers(0, 99)}
)
VARIETY = st.sampled_from([None, 1, 2, 4])
"""Variety of the steps below one text: the smaller, the more steps repeat."""
BUDGETS = st.fixed_dictionaries({}, optional={"tokens": st.integers(1, 150), "nodes": st.integers(1, 30)})
