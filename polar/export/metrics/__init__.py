"""A run's curves for TensorBoard, Weights & Biases and MLflow."""
