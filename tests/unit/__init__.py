"""Unit tests, named after what they test."""
