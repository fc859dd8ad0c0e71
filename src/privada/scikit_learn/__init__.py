"""scikit-learn: estimators that train under differential privacy, and transformers that pay.

What scikit-learn does around them is watched: what was fitted before on the same rows, and what was
learnt from private records on the way, is charged, refused or said.
"""
