"""Files, processes and hardware: nothing of federated learning."""
