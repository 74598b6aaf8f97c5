"""A client: trains the model that it receives on its own digits."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits import task

app = ClientApp()
torch.set_num_threads(1)


def own_dataset(context: Context):
    """Returns the client's training set."""
    config = context.run_config
    clients, _, _ = task.datasets(
        int(config["num-clients"]), float(config["alpha"]), int(config["seed"])
    )
    return clients[int(context.node_config["partition-id"])]


@app.train()
def train(message: Message, context: Context) -> Message:
    """Replies with the trained model and its number of training examples."""
    net, dataset = task.Net(), own_dataset(context)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    number = int(message.content["config"]["server-round"])
    minibatches = task.loader(
        dataset, seed=1000 * number + int(context.node_config["partition-id"])
    )
    config = context.run_config
    loss = task.train(net, minibatches, int(config["local-epochs"]), float(config["learning-rate"]))
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(dataset)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Replies with the accuracy on the client's own data."""
    net, dataset = task.Net(), own_dataset(context)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    metrics = MetricRecord(
        {"own-accuracy": task.accuracy(net, dataset), "num-examples": len(dataset)}
    )
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
