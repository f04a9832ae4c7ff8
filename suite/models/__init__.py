"""Decides the networks that are trained, each as a list of layers, so that a pipeline can cut it anywhere."""
