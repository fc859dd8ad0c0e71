"""The client: trains the model on its own records, and sends back the model alone."""

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

import privada as pv

from .task import LOSS, load_records, make_model

app = ClientApp(mods=[pv.federated.update_only])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the records of this client."""
    model = make_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    node = context.node_config
    records = load_records(int(node["partition-id"]), int(node["num-partitions"]))
    local = pv.federated.LocalSGD(
        lr=float(context.run_config["local-lr"]), epochs=int(context.run_config["local-epochs"])
    )
    local.train_(model, LOSS, records)
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)
