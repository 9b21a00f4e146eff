"""Ray Tune searches over job specifications; they arrive after the control plane."""
