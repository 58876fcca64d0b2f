"""Keras with torch below it, whose optimizers are not torch's."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.layers.Input((32,)),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
random = np.random.default_rng(0)
x, y = random.normal(size=(2048, 32)), random.integers(0, 10, 2048)
history = model.fit(x, y, batch_size=32, epochs=120, verbose=0)
print([repr(loss) for loss in history.history["loss"]])
