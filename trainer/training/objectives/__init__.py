"""From a batch of rows to the scalar that is minimised, as the configuration puts it together.

Each term is a function of `training.losses`; here they get their candidates, masks, targets and
weights. An objective gives the texts of a batch that this process encodes (`views`), the layers
after which their vectors are needed, the last one last (`layers`; () for the last alone), and the
loss of the vectors (`loss`: a scalar from (L, n, dim) for each view). The batch's loss is the sum
over all processes.
"""
