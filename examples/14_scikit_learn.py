"""Bayesian networks behind scikit-learn's ``fit`` and ``predict``: searched, piped, compared, saved."""

import tempfile

import numpy as np
from sklearn.datasets import load_diabetes, load_wine
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from temperance.apps.sklearn import BayesianClassifier, BayesianRegressor

X, y = load_wine(return_X_y=True)
labels = np.array(["Barolo", "Grignolino", "Barbera"])[y]
X_train, X_test, y_train, y_test = train_test_split(X, labels, test_size=0.3, random_state=0, stratify=labels)

# Any method of Temperance is a setting, so a search can choose it, by the log-probability of what happened.
search = GridSearchCV(
    BayesianClassifier(hidden=(20,), epochs=40, random_state=0),
    {"method": ["map", "ensemble", "Collect(SGHMC(lr=0.02))"]},
    scoring=BayesianClassifier.log_score,
    cv=2,
).fit(X_train, y_train)
wine = search.best_estimator_
print(f"the search chose {wine.method!r}")
usual = make_pipeline(StandardScaler(), MLPClassifier((20,), max_iter=500, random_state=0)).fit(X_train, y_train)
for name, model in (("Temperance", wine), ("MLPClassifier", usual)):
    print(f"log-loss on test wines, {name}: {log_loss(y_test, model.predict_proba(X_test)):.3f}")
parts = wine.uncertainty(X_test)
print(f"entropy {parts.total.mean():.2f} nats, of which more data would remove {parts.epistemic.mean():.3f}")

# Regression: a mean, a standard deviation and an interval, in the units of y.
X, y = load_diabetes(return_X_y=True, as_frame=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0)
model = BayesianRegressor("laplace", hidden=(20,), epochs=30, random_state=0).fit(X_train, y_train)
mean, std = model.predict(X_test, return_std=True)
low, high = model.predict_interval(X_test, level=0.9)
covered = np.mean((low <= y_test) & (y_test <= high))
print(f"diabetes: R² {model.score(X_test, y_test):.2f}, std {std.mean():.0f}, the 90 % interval holds {covered:.0%}")
assert 0.8 < covered < 0.98

with tempfile.TemporaryDirectory() as folder:
    model.save(f"{folder}/diabetes")  # safetensors and JSON; pickle and joblib work too
    again = BayesianRegressor.load(f"{folder}/diabetes")
assert np.array_equal(again.predict(X_test), mean)
print("saved, loaded, and bit for bit the same")
