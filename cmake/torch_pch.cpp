// Owner of the precompiled header that the tensor modules share.
