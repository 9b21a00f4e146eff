"""The control plane: REST service, command line and client; they arrive after the Ray runtime."""
