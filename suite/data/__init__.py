"""Data sets: text, images, sentence pairs and graphs, without a download where possible.

Every loader is numpy only, so that a parent process can check a folder before any rank starts.
"""
