"""The link between coordinator and sites: Flower's servers, who may use them, and the runs on them."""
