"""The recurrent core and the layer in front of it, in NumPy."""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def recur(weights, name, x, state):
    """One step of an LSTM, or of a GRU: the output and the next state."""
    w_i, w_h, b = (weights[f"{name}/{which}"] for which in ("w_i", "w_h", "b"))
    size = len(w_h)
    if w_i.shape[1] == 4 * size:
        hidden, cell = state[:, :size], state[:, size:]
        i, f, g, o = np.split(x @ w_i + hidden @ w_h + b, 4, -1)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(cell)
        return hidden, np.concatenate([hidden, cell], -1)
    (x_z, x_r, x_a), (h_z, h_r, h_a) = (np.split(w, 3, 1) for w in (w_i, w_h))
    b_z, b_r, b_a = np.split(b, 3)
    z, r = sigmoid(x @ x_z + state @ h_z + b_z), sigmoid(x @ x_r + state @ h_r + b_r)
    state = (1 - z) * state + z * np.tanh(x @ x_a + (r * state) @ h_a + b_a)
    return state, state


def embed(weights, name, x):
    x = x @ weights[f"{name}/embedding/linear_0/w"] + weights[f"{name}/embedding/linear_0/b"]
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    norm = f"{name}/embedding/layer_norm"
    return np.tanh(x * weights[f"{norm}/scale"] + weights[f"{norm}/offset"])


def unroll(weights, name, observation, state, kept):
    """Features [B, T, F] and the last state, step by step."""
    features = []
    for t in range(observation.shape[1]):
        x = embed(weights, name, observation[:, t])
        output, state = recur(weights, f"{name}/core", x, state)
        state = state * kept[:, t, None]
        features.append(np.concatenate([x, output], -1))
    return np.stack(features, 1), state
