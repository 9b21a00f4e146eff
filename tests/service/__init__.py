"""Tests of the control plane that need no Ray."""
