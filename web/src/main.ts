import { mount } from 'svelte';
import './app.css';
import App from './App.svelte';
import { takeInvite } from './lib/invite';
import { prefs } from './lib/prefs.svelte';

prefs.apply();
void takeInvite();
addEventListener('hashchange', () => void takeInvite());
mount(App, { target: document.getElementById('app')! });
