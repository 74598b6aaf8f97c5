"""Ten PyTorch clients on scikit-learn's digits, under FedVG and under Flower's FedAvg."""
