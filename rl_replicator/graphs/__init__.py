"""What is found in the graphs that TensorFlow has traced."""
