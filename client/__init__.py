"""The client: environments of a hub, policies, rollouts and evaluation."""
