"""Made-up data to try things on: recorded AI-agent conversations and the activity graph in them.

Import from `strandline.demo.messages`; nothing is re-exported here, where `messages` names the module."""
