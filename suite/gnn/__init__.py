"""Full-graph training on many processes: partition of the vertices and exchange of rows.

plan.py        what one sparse product needs from whom, counted before any process starts (numpy, scipy)
share.py       what one process holds of a plan
partition/     which process holds which vertex
exchange.py    sends the rows (torch)
train.py       a graph convolution network on an exchange (torch)
"""
