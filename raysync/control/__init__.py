"""Decisions about a job as a whole: membership and, later, states and reconciliation."""
